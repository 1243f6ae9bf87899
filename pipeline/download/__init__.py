"""The download stage: fetch images over HTTP, verify, resize and encode them."""
