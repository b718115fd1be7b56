/* The slots that the generic bodies fill. */
static void fill_table(ox_kernels *t)
{
    t->gemm[OX_F32] = gemm_F32;
    t->gemm[OX_F16] = gemm_F16;
    t->gemm[OX_BF16] = gemm_BF16;
    t->gemm[OX_Q4_0] = gemm_Q4_0;
    t->gemm[OX_Q4_1] = gemm_Q4_1;
    t->gemm[OX_Q5_0] = gemm_Q5_0;
    t->gemm[OX_Q5_1] = gemm_Q5_1;
    t->gemm[OX_Q8_0] = gemm_Q8_0;
    t->gemm[OX_Q4_K] = gemm_Q4_K;
    t->gemm[OX_Q5_K] = gemm_Q5_K;
    t->gemm[OX_Q6_K] = gemm_Q6_K;
    t->gemm[OX_Q8_1] = gemm_Q8_1;
    t->gemm[OX_Q8_K] = gemm_Q8_K;
    t->gemm[OX_Q1_0] = gemm_Q1_0;
    t->gemm[OX_Q2_0] = gemm_Q2_0;
    t->gemm[OX_Q2_K] = gemm_Q2_K;
    t->gemm[OX_Q3_K] = gemm_Q3_K;
    t->gemm[OX_TQ1_0] = gemm_TQ1_0;
    t->gemm[OX_TQ2_0] = gemm_TQ2_0;
    t->gemm[OX_MXFP4] = gemm_MXFP4;
    t->gemm[OX_NVFP4] = gemm_NVFP4;
    t->gemm[OX_IQ4_NL] = gemm_IQ4_NL;
    t->gemm[OX_IQ4_XS] = gemm_IQ4_XS;
    t->gemm[OX_IQ3_S] = gemm_IQ3_S;
    t->gemm[OX_IQ3_XXS] = gemm_IQ3_XXS;
    t->gemm[OX_IQ2_S] = gemm_IQ2_S;
    t->gemm[OX_IQ2_XS] = gemm_IQ2_XS;
    t->gemm[OX_IQ2_XXS] = gemm_IQ2_XXS;
    t->gemm[OX_IQ1_S] = gemm_IQ1_S;
    t->gemm[OX_IQ1_M] = gemm_IQ1_M;
    t->quantise_q8 = quantise_q8;
    t->rms_norm = rms_norm;
    t->add = add;
    t->add_scaled = add_scaled;
    t->swiglu = swiglu;
    t->softmax = softmax;
    t->rope_neox = rope_neox;
    t->to_f16 = to_f16;
    t->kv_store_f16 = kv_store_f16;
    t->attention = attention;
}
