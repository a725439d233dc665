import json
json.loads("{bad json}")
