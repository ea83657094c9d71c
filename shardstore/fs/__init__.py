"""The seam to the operating system: one protocol, several implementations.

`protocol` is the contract; `posix` the real thing, on Linux; `portable` what other systems get;
`system` chooses; `memory` is a crashable one for tests; `faulty` wraps another and makes it fail.
Nothing outside this package touches the system.
"""
