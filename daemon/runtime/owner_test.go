package runtime

func owner(string) {}
