"""Looking into stores and artifacts; nothing is changed."""
