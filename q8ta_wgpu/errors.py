"""The one tree of errors. A message names the value found, the value expected, where, and the way out."""


class Q8taError(Exception):
    """Base of every error this library raises on purpose."""


class UnsupportedError(Q8taError):
    """The model uses something that cannot be imported, quantized or scheduled."""


class GraphError(Q8taError):
    """A graph breaks a rule of the IR: a dangling name, a wrong shape, dtype or attribute."""


class ModelFileError(Q8taError):
    """A .q8ta file cannot be read, or its contents are not a valid model."""


class DeviceError(Q8taError):
    """No adapter, an adapter that cannot keep the arithmetic contract, or a limit that is too small."""


class InputError(Q8taError):
    """An argument of a call (calibration data, session inputs, options) is not what the model needs."""


class LinkError(Q8taError):
    """The WGSL files do not give a kernel what it needs: a name without a definition, or with several."""
