import io, logging, logging.handlers
class Loud(logging.Handler):
    def emit(self, record):
        pass
    def flush(self):
        print("flushed")
    def close(self):
        print("closed")
        super().close()
logging.getLogger().addHandler(Loud())
print("end of main")
