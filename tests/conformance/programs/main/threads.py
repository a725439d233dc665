import threading
print(threading.main_thread().name, threading.current_thread() is threading.main_thread(), threading.active_count())
print(threading.current_thread().name, threading.current_thread().daemon, threading.main_thread().is_alive())
print([thread.name for thread in threading.enumerate()], threading.get_native_id() == __import__("os").getpid())
print(threading._main_thread.ident == threading.get_ident())
