"""Stage `download`: fetch images over HTTP, verify, resize and encode them."""
