# -*- coding: utf-8 -*-
print("ü")
