from oxillama.kernels.matmul import Matrix
from oxillama.kernels.rows import Rows

def swiglu(x: Rows, gate: Matrix, up: Matrix, codes: bool = ...) -> Rows: ...
