from package import sibling_user
print(sibling_user.value)
