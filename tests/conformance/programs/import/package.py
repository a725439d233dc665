import package
import package.inner.deep
from package.inner import deep as again
print(package.__path__, package.inner.deep is again, again.where())
