"""What methods are tried on: real models, corpora, images, and small models trained here, each loaded by name.

Import the module that is needed, for example ``from lib.substrates.models import load_language_model``;
this package itself imports nothing, so that a method without a model does not pay for torch.
"""
