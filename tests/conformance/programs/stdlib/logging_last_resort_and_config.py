import logging, logging.config
print(logging.root.handlers, logging.root.level, logging.getLogger("x").getEffectiveLevel(), sorted(logging.root.manager.loggerDict))
logging.config.dictConfig({"version": 1, "handlers": {"h": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["h"], "level": "INFO"}})
logging.info("configured")
