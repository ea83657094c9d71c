"""The seam to the operating system: one protocol, several implementations.

`protocol` is the contract; `posix` the real thing; `memory` a crashable one for tests;
`faulty` wraps another and makes it fail. Nothing outside this package touches the system.
"""
