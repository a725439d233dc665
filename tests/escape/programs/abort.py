# Property 27.
# expect: status=crashed exit=None signal=SIGABRT

import os

os.abort()
