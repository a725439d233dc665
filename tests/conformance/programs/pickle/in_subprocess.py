import pickle, subprocess, sys
class Point:
    def __init__(self, x):
        self.x = x
if __name__ == "__main__":
    dumped = pickle.dumps(Point(3))
    reader = "import pickle, sys, main; sys.modules['__main__'].Point = main.Point; print(pickle.loads(sys.stdin.buffer.read()).x)"
    print(subprocess.run([sys.executable, "-c", reader], input=dumped, capture_output=True).stdout)
