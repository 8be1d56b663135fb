"""Prints what an address answers."""
import sys
import urllib.request

print(urllib.request.urlopen(sys.argv[1], timeout=50).read().decode().strip())
