# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages that a server imports at its top level and that its connector never calls: their
wheels are hundreds of megabytes, or need the torch for CUDA."""

import importlib.abc
import importlib.machinery
import sys
import types


class _Module(types.ModuleType):
    """Has every attribute: a class for a name with a capital, a module for another. As a decorator it returns
    the function."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made = type(name, (), {"__module__": self.__name__}) if name[0].isupper() else _made(full)
        setattr(self, name, made)
        return made

    def __call__(self, *arguments, **named):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else lambda function: function


def _made(name):
    module = sys.modules[name] = _Module(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, _Finder, is_package=True)
    module.__path__ = []
    return module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def use(*packages):
    """Lets `import` give a stand-in for these packages and the modules in them."""
    sys.meta_path.insert(0, _Finder(packages))
