import multiprocessing
def work(connection):
    connection.send(["from", __name__])
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs,))
    child.start()
    print(ours.recv())
    child.join(20)
    print(child.exitcode)
