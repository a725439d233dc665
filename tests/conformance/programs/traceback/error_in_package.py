from package.inner import deep
deep.run()
