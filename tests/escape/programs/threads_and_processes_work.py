# Property 33: refused namespaces and clone3 break nothing that programs use.
# expect: status=ok exit=0 stdout="[0, 1, 4, 9] [0, 1, 4, 9] hello 3"

import asyncio
import concurrent.futures
import multiprocessing
import subprocess


def square(number):
    return number * number


async def main():
    child = await asyncio.create_subprocess_exec("/bin/echo", "hello", stdout=-1)
    return (await child.communicate())[0].decode().strip()


if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as threads, multiprocessing.Pool(2) as processes:
        print(list(threads.map(square, range(4))), processes.map(square, range(4)), asyncio.run(main()),
              subprocess.run("exit 3", shell=True).returncode)
