import sysconfig
print(sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"], sysconfig.get_platform(), sysconfig.get_python_version())
