"""What attacks are made on: homes, stores, engines and sandboxes, each made for one attack and gone afterwards."""
