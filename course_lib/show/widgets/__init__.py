"""Live panels: plain ipywidgets around the pictures of `course_lib.show`."""
