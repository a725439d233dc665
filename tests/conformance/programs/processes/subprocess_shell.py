import subprocess
print(subprocess.check_output("echo $((6 * 7)) | tr 4 5", shell=True, text=True))
print(subprocess.run("kill -TERM $$", shell=True).returncode)
print(subprocess.getstatusoutput("echo text; exit 2"))
