import html, xml.etree.ElementTree as tree
root = tree.fromstring("<a><b c='1'>text</b></a>")
print(root.find("b").attrib, html.escape("<>"), tree.tostring(root))
