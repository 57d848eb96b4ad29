package install

type made struct{}

func (b *build) snapshot() (*made, error) { return nil, nil }
func (b *build) verify(*made) error       { return nil }
