"""A module that cannot be imported."""

print("about to fail")
raise RuntimeError("this preload is broken")
