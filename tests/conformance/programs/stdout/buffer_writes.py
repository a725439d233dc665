import sys
sys.stdout.buffer.write(b"raw \xff\xfe bytes\n")
sys.stdout.write("text\n")
sys.stdout.buffer.write(b"raw again\n")
