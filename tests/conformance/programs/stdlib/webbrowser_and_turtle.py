import webbrowser
print(webbrowser.open("http://example.com"))
