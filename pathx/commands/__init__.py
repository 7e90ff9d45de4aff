"""The commands, one file each: parse, call the library, print. None loads torch before there is work."""
