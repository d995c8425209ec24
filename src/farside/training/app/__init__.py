"""The four training programs of `farside train`, each on `farside.training.begin` as a user's own would be.

nmf.py    non-negative matrix factorisation, by HALS
lda.py    latent Dirichlet allocation, by collapsed Gibbs sampling; its compiled part is in lda_kernel.py
mlr.py    multinomial logistic regression, by FISTA
lasso.py  linear regression with an L1 penalty, by FISTA
fista.py  what the last two share
dataset.py, input_file.py, synthetic.py   where their input comes from
program.py                                options, results, and which program is which
"""
