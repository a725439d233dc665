import warned
warned.run()
