"""What may follow a weighted sum in its own dispatch, from int32 accumulators to what is stored."""
