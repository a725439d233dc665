import IPython
print(IPython.get_ipython(), IPython.__name__)
