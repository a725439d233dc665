import site
print(site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE)
print(site.getsitepackages(), site.getusersitepackages())
