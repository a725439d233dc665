import leaves_at_import
print("never printed")
