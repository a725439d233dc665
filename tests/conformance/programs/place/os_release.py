import platform
print(platform.freedesktop_os_release()["ID"])
