import sys
sys.argv.append("x")
sys.path.append("/nowhere")
sys.modules["fake"] = sys
import fake
print(fake is sys, sys.argv, sys.path[-1])
