import requests
print(requests.__name__, requests.Request("GET", "http://example.com/").prepare().url)
