package sysfs

// Name is the class in words, without subclass and protocol: "human interface
// device", "vendor-specific"; the code in hex where it has no name.
func (c Class) Name() string { panic("to come") }
