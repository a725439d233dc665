import psutil
process = psutil.Process()
print(process.name(), process.status(), process.num_threads(), process.cwd(), len(process.children()), process.memory_info().rss > 0)
