from PIL import Image, ImageDraw
image = Image.new("RGB", (20, 10), "white")
ImageDraw.Draw(image).line((0, 0, 19, 9), fill="red")
image.save("picture.png")
print(Image.open("picture.png").size, image.getpixel((0, 0)))
