import latin1_module
print(latin1_module.word)
