import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(levelname)s %(name)s %(module)s %(funcName)s %(lineno)d %(processName)s %(threadName)s %(message)s")
def work():
    logging.getLogger("worker").debug("working")
work()
