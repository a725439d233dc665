import logging, multiprocessing
logger = multiprocessing.log_to_stderr(logging.INFO)
logger.info("told")
