"""The codec of the weights, with its passes on the device."""
