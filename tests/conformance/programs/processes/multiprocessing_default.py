import multiprocessing
print(multiprocessing.get_start_method(), multiprocessing.current_process().name, multiprocessing.parent_process(), multiprocessing.active_children())
print(multiprocessing.current_process().daemon, multiprocessing.get_all_start_methods())
