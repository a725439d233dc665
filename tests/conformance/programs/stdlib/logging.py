import logging
logging.warning("default format")
logging.info("not shown")
logging.getLogger("some.name").error("with %s", "arguments")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("with a traceback")
