"""The captions stage: a cleaned caption for each row, beside the original."""
