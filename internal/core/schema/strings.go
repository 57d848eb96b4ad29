package schema

// Strings is a list that may be written as one string: id = "10c4:ea60" and
// id = ["10c4:ea60", "1a86:*"].
type Strings []string
