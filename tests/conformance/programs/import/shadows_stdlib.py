import colorsys
print(colorsys.__file__, colorsys.mine)
