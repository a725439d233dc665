import subprocess, sys
if len(sys.argv) > 1:
    print("child", sys.argv[1:])
    sys.exit(4)
print(subprocess.run([sys.executable, __file__, "again"], capture_output=True, text=True))
